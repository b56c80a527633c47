"""TensorBoard's event files for tests, by its own writer."""

import json

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

BEGAN = 1_700_000_000


def events(steps, scalars, began=BEGAN, every=12.0, arguments=None):
    """The events of one process: every scalar of a step in one of its own, `every` seconds after the step before.

    A scalar is one number for all steps, or one for each. `arguments` are those that transformers' callback writes.
    """
    yield Event(wall_time=began, file_version="brain.Event:2")
    if arguments:
        text = Summary.Value(tag="args/text_summary", tensor=make_tensor_proto(json.dumps(arguments).encode()))
        yield Event(wall_time=began, summary=Summary(value=[text]))
    for at, step in enumerate(steps):
        for name, numbers in scalars.items():
            number = numbers[at] if isinstance(numbers, list) else numbers
            value = Summary.Value(tag=name, simple_value=number)
            yield Event(wall_time=began + (at + 1) * every, step=step, summary=Summary(value=[value]))


def write_events(folder, steps, scalars, name="", after_s=0, kept=None, damaged=False, **more):
    """The file of a process that began `after_s` later than others, named as torch's SummaryWriter names it.

    So many of its bytes are `kept`; `damaged`: four in its middle are zeros.
    """
    began = BEGAN + after_s
    file = folder / (name or f"events.out.tfevents.{began}.host.4711.0")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as raw:
        writer = RecordWriter(raw)
        for event in events(steps, scalars, began, **more):
            writer.write(event.SerializeToString())
    content = file.read_bytes()[:kept]
    half = len(content) // 2
    file.write_bytes(content[:half] + b"\0\0\0\0" + content[half + 4 :] if damaged else content)
