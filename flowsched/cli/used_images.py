"""What `run` and `show` say of the images that a workflow's tasks name: the digest, or that the image was ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.workflow.views import ImageView, StageView, TaskView

#: Of so many stages the first task is asked for its images.
STAGES: Final = 20


async def used_images(client: Client, ident: str, stages: Sequence[StageView]) -> list[ImageView]:
    """The images of each stage's first task, each once, as far as its tries have ended."""
    begun = [stage for stage in stages if any(stage.counts.get(state) for state in ("SUCCEEDED", "FAILED"))]
    firsts = await asyncio.gather(*(_first(client, ident, stage.name) for stage in begun[:STAGES]))
    found = {
        (image.name, image.digest): image
        for task in firsts
        if task is not None
        for each in task.attempts
        for image in each.images
    }
    return list(found.values())


async def _first(client: Client, ident: str, stage: str) -> TaskView | None:
    """The first task of a stage; that of another engine's run need not have the number 0."""
    async for task in client.tasks(ident, stage=stage, page=1):
        return await client.task(ident, stage, task.index)
    return None


def image_line(image: ImageView) -> Text:
    """One image, for a person."""
    if image.digest:
        return Text.assemble("image ", render.text(image.name), " ", render.text(image.digest, "dim"))
    return Text.assemble(
        "image ", render.text(image.name, "bold"), (" ignored", "yellow"),
        ": its tasks ran with the programs of this machine (--images ignore)",
    )  # fmt: skip
