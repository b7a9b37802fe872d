"""A federation whose tables are files, as that of a run that is gone on with."""

import pytest

from anyparty.api.federation import Federation
from tests.api.test_train_tables import tables


@pytest.fixture
def federation(tmp_path):
    files = {}
    for name, frame in tables().items():
        files[name] = tmp_path / f"{name}.csv"
        frame.write_csv(files[name])
    return Federation.from_tables(files, label="bad")
