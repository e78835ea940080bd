"""docs/add-a-model.md, done as it says in a copy of the checkout: 2NN, and its tests there."""

import pytest
from copied_checkout import blocks, copy_checkout, in_copy, insert, passes


@pytest.mark.slow
def test_a_model_is_one_file_and_one_line(tmp_path):
    model, imported, line, own_test = blocks("add-a-model.md", "python")
    (command,) = blocks("add-a-model.md", "bash")
    copy = copy_checkout(tmp_path)
    (copy / "fedadb_app" / "models" / "mlp.py").write_text(model)
    (copy / "tests" / "test_mlp.py").write_text(own_test)
    registry = copy / "fedadb_app" / "models" / "registry.py"
    insert(registry, ("from fedadb_app.models import", imported), ('        "lenet":', line))
    in_copy(copy, command.split()[1])
    files = ("tests/test_mlp.py", "tests/contract/test_every_model.py")
    passes(copy, *files, "tests/test_tables_of_keys.py", "-k", "mlp or tables_of_keys")
    assert '"mlp"' in (copy / "docs" / "run.md").read_text()
