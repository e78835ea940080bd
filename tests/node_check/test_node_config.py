"""check-node reads a node's configuration with Flower's own parser, and says what that drops."""

import pytest

from fedadb_app.errors import ConfigError
from fedadb_app.flower_internals import parse_node_config
from fedadb_app.node_check.settings import node_config_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('data-path="/data/a b"', {"data-path": "/data/a b"}),
        ("data-path='C:\\data\\h'", {"data-path": "C:\\data\\h"}),
        ("partition-id=0 num-partitions=3", {"partition-id": 0, "num-partitions": 3}),
        ('data-path="/d"  frames="each"', {"data-path": "/d", "frames": "each"}),
        ('data-path="/R\u00f6ntgen (1)"', {"data-path": "/R\u00f6ntgen (1)"}),
    ],
)
def test_what_flower_understands(text, expected):
    assert node_config_of(text) == expected
    assert parse_node_config(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('data-path = "/d"', 'understand data-path; write key=value without blanks around "="'),
        ('data-path= "/d"', "understand data-path"),
        ("partition-id=0 num-partitions = 3", "understand num-partitions"),
        ('data-path="C:\\data\\h"', "a backslash needs single quotes, data-path='C:\\data\\h'"),
        ("partition-id=0, num-partitions=3", "no commas: partition-id=0"),
        ("data-path=/data/h", 'write texts in double quotes: data-path="/data/h"'),
        ("data-path", "is no key=value pair"),
    ],
)
def test_what_it_drops_or_refuses(text, words):
    with pytest.raises(ConfigError) as caught:
        node_config_of(text)
    assert words in str(caught.value)


def test_a_file(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text('data-path = "/data/h"\n')
    assert node_config_of(str(path)) == {"data-path": "/data/h"}
