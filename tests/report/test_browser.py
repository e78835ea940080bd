"""A page in a real browser: drawn, readable, within its margins."""

import json
import os
import select
import shutil
import subprocess

import pytest
from report_pages import page_of

PROBE = """(async () => {
document.querySelectorAll("details").forEach(part => part.open = true);
const channels = colour => (colour.match(/[0-9.]+/g) || []).map(Number);
const clear = colour => channels(colour)[3] === 0;
const luminance = colour => {
  const [r, g, b] = channels(colour).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  while (element && clear(getComputedStyle(element).backgroundColor))
    element = element.parentElement;
  return element ? getComputedStyle(element).backgroundColor : "rgb(255, 255, 255)";
};
const contrast = element => {
  const style = getComputedStyle(element);
  const text = luminance(element.closest("svg") ? style.fill : style.color);
  const ground = luminance(behind(element));
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
};
// What stands on a picture's cell: `ink_on` sees to it, which test_pictures.py holds to.
const onCell = element => element.closest("svg")?.querySelector("image") &&
  ["rgb(0, 0, 0)", "rgb(255, 255, 255)"].includes(getComputedStyle(element).fill);
const own = element => [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
const texts = [...document.body.querySelectorAll("*")].filter(e => own(e) && e.checkVisibility());
const pictures = [...document.images], drawings = [...document.querySelectorAll("svg")];
const embedded = [...document.querySelectorAll("svg image")].map(element => {
  const image = new Image();
  image.src = element.href.baseVal;
  image.alt = element.closest("svg").ariaLabel;
  return image;
});
await Promise.allSettled([...pictures, ...embedded].map(image => image.decode()));
const drawn = svg => svg.getBoundingClientRect().width > 100 && svg.getBBox().width > 100;
return {
  wrong: [
    ...[...pictures, ...embedded].filter(image => !image.naturalWidth).map(image => image.alt),
    ...drawings.filter(svg => !drawn(svg)).map(svg => svg.ariaLabel),
  ],
  over: document.documentElement.scrollWidth - innerWidth,
  pictures: pictures.length + drawings.length,
  texts: texts.length,
  faint: texts.filter(e => !onCell(e) && contrast(e) < 4.5)
    .map(e => `${e.tagName} ${e.textContent}`),
  ground: behind(document.body),
};
})()"""
CHROMIUM = shutil.which("chromium")


class Browser:
    """A headless Chromium, told what to do over a pipe (Chrome DevTools Protocol)."""

    def __init__(self, profile):
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", str(CHROMIUM)]
        command += ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(reads, writes),
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer, self.events, self._session = b"", [], {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        message = {"id": 1, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self.until(lambda answer: "id" in answer)["result"]

    def until(self, wanted):
        while True:
            while b"\0" not in self._buffer:
                assert select.select([self._from], [], [], 60)[0], "the browser says nothing"
                self._buffer += os.read(self._from, 2**16)
            text, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(text)
            self.events.append(message)
            if wanted(message):
                return message

    def look(self, path, width=1400, scheme="light", media="screen"):
        """Open a page; return what the probe found and what the console said."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not self.said("Page.loadEventFired"):
            self.until(lambda message: message.get("method") == "Page.loadEventFired")
        found = self.call(
            "Runtime.evaluate", expression=PROBE, awaitPromise=True, returnByValue=True
        )
        return found["result"]["value"], self.said("Log.entryAdded", "Runtime.exceptionThrown")

    def said(self, *methods):
        return [event for event in self.events if event.get("method") in methods]

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture
def browser(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.mark.browser
def test_a_browser_draws_every_picture_and_complains_of_nothing(browser, either, tmp_path):
    page = page_of(either, tmp_path, drawn=True)
    for width in (360, 500, 1400):
        for scheme, ground in (("light", "rgb(244, 246, 248)"), ("dark", "rgb(14, 17, 21)")):
            found, console = browser.look(tmp_path / "page.html", width, scheme)
            assert console == []
            assert found["wrong"] == []
            assert found["over"] <= 0  # nothing but tables and wide figures scrolls sideways
            assert found["pictures"] == len(page.all("img")) + len(page.all("svg"))
            assert found["texts"] > 100
            assert found["faint"] == []
            assert found["ground"] == ground


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_everything_is_dark_on_white_and_within_the_margins(
    browser, either, tmp_path, scheme
):
    page_of(either, tmp_path, drawn=True)
    a4 = round((210 - 2 * 14) / 25.4 * 96)
    found, _ = browser.look(tmp_path / "page.html", a4, scheme, "print")
    assert found["wrong"] == []
    assert found["over"] <= 0
    assert found["texts"] > 100
    assert found["faint"] == []
    assert found["ground"] == "rgb(255, 255, 255)"


@pytest.mark.browser
def test_the_browser_check_finds_what_is_broken(browser, run, tmp_path):
    page_of(run, tmp_path, drawn=True)
    path = tmp_path / "page.html"
    broken = path.read_text().replace("data:image/png;base64,", "data:image/png;base64,A", 1)
    more = (
        '<img src="https://example.org/a.png" alt="x"><p style="color: var(--grid)">faint</p>'
        '<div style="width: 2000px">wide</div></body>'
    )
    path.write_text(broken.replace("</body>", more))
    found, console = browser.look(path)
    assert "x" in found["wrong"]
    assert len(found["wrong"]) == 2
    assert console
    assert found["faint"] == ["P faint"]
    assert found["over"] > 0
