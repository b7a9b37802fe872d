"""A party's part of a job that causes a fault at a chosen message; the parties' own processes import this module.

The file fault.json in the party's folder names the fault, the message before which it happens, and the file is deleted
first, so that a restarted process goes on:

    {"fault": "kill site", "tag": "embedding", "number": 40}
"""

import os
import resource
import signal
from pathlib import Path

from anyparty.core.storage import read_json
from anyparty.deployment.flare import site_process
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.deployment.site.site_training import train_at_site

HERE = "tests.faults.faulty_parts"
PARTS = {"train": f"{HERE}:trains", "predict": f"{HERE}:predicts"}


def cause(fault, kit):
    if fault == "kill job":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if fault in {"kill site", "stop site"}:
        number = signal.SIGKILL if fault == "kill site" else signal.SIGSTOP
        for process in sorted(site_process.at_kit(kit), key=lambda each: each.pid == os.getpid()):  # this one last
            process.send_signal(number)


def with_fault(site, net):
    path, count, send = site.folder / "fault.json", 0, net.send
    if not path.exists():
        return net
    order = read_json(path)

    async def send_or_fail(to, tag, tensors):
        nonlocal count
        count += tag == order["tag"]
        if count == order["number"] and path.exists():
            path.unlink()
            cause(order["fault"], Path(site.folder).parent)
        return await send(to, tag, tensors)

    net.send = send_or_fail
    return net


async def trains(site, config, net, **asked):
    return await train_at_site(site, config, with_fault(site, net), **asked)


async def predicts(site, config, net, **asked):
    return await predict_at_site(site, config, with_fault(site, net), **asked)
