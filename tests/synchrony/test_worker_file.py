"""Files of workers: what they say is what the worker has, and what cannot be is refused with the name of the file."""

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.synchrony.worker import NO_LIMIT
from cdmpp.synchrony.worker_file import read_worker

LINK = AlphaBeta(1e-3, 1e-8)


def written(folder, text):
    file = folder / "worker.yaml"
    file.write_text(text)
    return file


def test_a_measured_worker_at_a_part_of_its_speed(tmp_path):
    sheet = read_worker(written(tmp_path, "batch_s: 0.2\nbatch: 16\nspeed: 0.25\nspread: 0.1\n"))
    worker = sheet.worker(sheet.batch_s, LINK)
    assert (worker.batch_s, worker.samples, worker.spread, worker.link) == (0.8, 16, 0.1, LINK)


def test_an_own_link_replaces_that_of_the_job(tmp_path):
    own = read_worker(written(tmp_path, "batch_s: 1\nbatch: 1\nlink: {latency_s: 1e-2, bytes_per_s: 1e6}\n"))
    assert own.worker(1.0, LINK).link == AlphaBeta(0.01, 1e-6)
    named = read_worker(written(tmp_path, "batch_s: 1\nbatch: 1\nlink: ethernet-1g\n"))
    assert named.worker(1.0, NO_LIMIT).link.beta_s == pytest.approx(
        8e-9 / 0.95, rel=1e-4
    )  # the rest of the line are heads of packets


def test_intervals_of_a_predicted_worker_follow_its_speed(tmp_path):
    sheet = read_worker(written(tmp_path, "device: epyc-genoa\nbatch: 8\nspeed: 0.5\n"))
    assert sheet.worker(1.0, LINK, (0.8, 1.5)).interval_s == (1.6, 3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch: 8\n", "give one of the two"),
        ("batch: 8\nbatch_s: 1\ndevice: a100\n", "give one of the two"),
        ("batch_s: 1\n", "worker.batch is missing"),
        ("batch: 8\nbatch_s: 0\n", "above 0"),
        ("batch: 8\nbatch_s: .inf\n", "worker.batch_s"),
        ("batch: 8\nbatch_s: 1\nspeed: 0\n", "worker.speed"),
        ("batch: 8\nbatch_s: 1\nlink: ethernet-1\n", "ethernet-1g"),
        ("batch: 8\nbatch_s: 1\nlink: {latency_s: 0}\n", "bytes_per_s is missing"),
        ("batch: 8\nbatch_s: 1\nlink: {latency_s: 0, bytes_per_s: 0}\n", "bytes_per_s"),
        ("batch: 8\nbatch_s: 1\nsped: 1\n", "speed"),
        ("- 1\n", "worker"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, words):
    with pytest.raises(UsageError, match=r"worker\.yaml: ") as told:
        read_worker(written(tmp_path, text))
    assert words in str(told.value)
