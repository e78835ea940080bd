"""docs/add-a-data-set.md, done as it says in a copy of the checkout, and its tests there."""

import pytest
from copied_checkout import blocks, copy_checkout, in_copy, insert, passes


@pytest.mark.slow
def test_a_data_set_is_one_file_and_one_line(tmp_path):
    dataset, imported, line, own_test = blocks("add-a-data-set.md", "python")
    (command,) = blocks("add-a-data-set.md", "bash")
    copy = copy_checkout(tmp_path)
    (copy / "fedadb_app" / "data" / "datasets" / "photo_patches.py").write_text(dataset)
    (copy / "tests" / "data" / "test_photo_patches.py").write_text(own_test)
    registry = copy / "fedadb_app" / "data" / "registry.py"
    insert(registry, ("from fedadb_app.data.datasets import", imported), ('        "svhn":', line))
    in_copy(copy, command.split()[1])
    files = ("tests/data/test_photo_patches.py", "tests/contract/test_every_data_set.py")
    passes(copy, *files, "tests/test_tables_of_keys.py", "-k", "photo or tables_of_keys")
    assert '"photo-patches"' in (copy / "docs" / "run.md").read_text()
