"""What `run` and `show` say of the images that a workflow's tasks name: the digest, or that the image was ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.workflow.views import ImageView, StageView

#: Of so many stages the first task is asked for its images.
STAGES: Final = 20


async def used_images(client: Client, ident: str, stages: Sequence[StageView]) -> list[ImageView]:
    """The images of each stage's first task, each once, as far as its tries have ended."""
    begun = [stage for stage in stages if any(stage.counts.get(state) for state in ("SUCCEEDED", "FAILED"))]
    first = await asyncio.gather(*(client.task(ident, stage.name, 0) for stage in begun[:STAGES]))
    found = {
        (image.name, image.digest): image for task in first for each in task.attempts for image in each.images
    }
    return list(found.values())


def image_line(image: ImageView) -> Text:
    """One image, for a person."""
    if image.digest:
        return Text.assemble("image ", render.text(image.name), " ", render.text(image.digest, "dim"))
    return Text.assemble(
        "image ", render.text(image.name, "bold"), (" ignored", "yellow"),
        ": its tasks ran with the programs of this machine (--images ignore)",
    )  # fmt: skip
