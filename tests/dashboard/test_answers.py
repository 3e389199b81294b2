"""What the page draws and says of each kind of answer: depth, objects, boxes, rows of numbers, class 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.protocol.card import ClassInfo, ImageContract
from mqinfer.protocol.types import EncodedTensor
from tests.dashboard.chromium import PageOf, Watched
from tests.dashboard.numbered import HEIGHT, WIDTH
from tests.dashboard.pixels import mask_pixels
from tests.dashboard.publishing import Publisher, Stream
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

CAR, ROAD = ClassInfo("car", (200, 30, 30)), ClassInfo("road", (30, 30, 200))
NEAR = 40
"""How far a part of a colour of depth may be from that of an edge's pictures: the page computes it."""
LABEL_ROWS = 12
"""Rows of a label that have its colour from side to side, at least: it has 16."""

Answered = Callable[..., Watched]


@pytest.fixture
def publisher(quiet_site: QuietSite) -> Iterator[Publisher]:
    """Publish as workers do."""
    with Publisher(quiet_site.broker.url) as publisher:
        yield publisher


@pytest.fixture
def answered(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> Answered:
    """Open a page and publish one result of a stream whose model has some classes: `answered(classes, *outputs)`."""

    def publish(model: str, classes: tuple[ClassInfo, ...], *outputs: EncodedTensor) -> Watched:
        publisher.card(model, classes, image=ImageContract("input", WIDTH, HEIGHT))
        publisher.worker("made-up.0", model)
        watched = page_of(quiet_site.url)
        watched.show("models")
        watched.page.locator("[data-testid='model-row']", has_text=model).first.wait_for(state="visible")
        watched.show("live")
        publisher.result(Stream(f"car-{model}", "/front", model), 1, *outputs)
        watched.page.wait_for_selector(
            f"[data-testid='tile'][data-key='car-{model}/{model}//front'][data-sequence='1']"
        )
        watched.page.get_by_test_id("select-model").select_option(model)
        watched.page.wait_for_function("() => document.querySelectorAll(`[data-testid='tile']`).length === 1")
        watched.frames(2)
        return watched

    return publish


def floats(name: str, values: npt.ArrayLike) -> EncodedTensor:
    """Encode numbers as FP32."""
    return encode_tensor(name, np.asarray(values, np.float32), "raw")


def boxes(*corners: tuple[float, ...], classes: tuple[int, ...]) -> tuple[EncodedTensor, ...]:
    """Encode boxes, the best first."""
    scores = [0.9 - 0.1 * row for row in range(len(corners))]
    numbers = encode_tensor("classes", np.array(classes, np.int64), "raw")
    return floats("boxes", corners), floats("scores", scores), numbers


def opened(watched: Watched) -> str:
    """Return what the log's first result says of its answer."""
    watched.show("log")
    watched.page.locator("[data-testid='log-row'][data-kind='result'] button").first.click()
    said: str = watched.page.get_by_test_id("log-answer").inner_text()
    return said


def test_depth_has_colours_and_their_scale(answered: Answered) -> None:
    """Those of the pictures of edges, what is no number transparent; the least and the greatest number are written."""
    depth = np.tile(np.linspace(2.0, 12.5, WIDTH), (1, HEIGHT, 1))
    depth[0, 0, 0] = np.nan
    watched = answered("depth", (), floats("depth", depth))
    _, pixels = mask_pixels(watched, "car-depth")
    assert pixels[0, 0, 3] == 0
    levels = np.linspace(0, 254, WIDTH).round().astype(np.uint8)[np.newaxis]
    colours = cv2.applyColorMap(levels, cv2.COLORMAP_TURBO)[0, :, ::-1]
    assert np.abs(pixels[1, :, :3].astype(int) - colours).max() <= NEAR
    scale = watched.page.get_by_test_id("scale")
    scale.wait_for(state="visible")
    assert scale.inner_text().split() == ["depth", "2.000", "12.50"]


def test_a_row_of_numbers_is_described(answered: Answered) -> None:
    """An embedding is said by its name, datatype, shape, least and greatest number: on the tile and in the log."""
    values = np.linspace(-1.5, 2.25, 128).reshape(1, 128)
    watched = answered("embedding", (), floats("features", values))
    said = "features FP32[1, 128] -1.5 to 2.25"
    watched.page.get_by_test_id("tile").get_by_text(said).wait_for(state="visible")
    assert said in opened(watched)


@pytest.mark.parametrize(
    ("model", "name", "values", "said"),
    [
        (
            "codes",
            "codes",
            np.linspace(-3.25, 2.5, 1024).reshape(1, 4, 16, 16),
            "codes FP32[1, 4, 16, 16] -3.25 to 2.5",
        ),
        ("numbers", "steering", [[0.25, -0.5, 4.0]], "steering FP32[1, 3] -0.5 to 4"),
        ("number", "speed", [[13.5]], "speed FP32[1, 1] 13.5"),
    ],
)
def test_other_numbers_are_described(
    answered: Answered, model: str, name: str, values: npt.ArrayLike, said: str
) -> None:
    """Codes of an autoencoder and a few plain numbers are no picture and no classes, on the tile and in the log."""
    watched = answered(model, (), floats(name, values))
    watched.page.get_by_test_id("tile").get_by_text(said).wait_for(state="visible")
    assert opened(watched).split("\n")[0] == said


def test_what_has_several_outputs_shows_each(answered: Answered) -> None:
    """Codes beside a depth: that is drawn, they are described in the log's line."""
    depth = np.tile(np.linspace(2.0, 12.5, WIDTH), (1, HEIGHT, 1))
    watched = answered("both", (), floats("depth", depth), floats("codes", np.linspace(-1, 1, 64).reshape(1, 4, 4, 4)))
    _, pixels = mask_pixels(watched, "car-both")
    assert (pixels[:, :, 3] == 255).all()
    assert "codes FP32[1, 4, 4, 4] -1 to 1" in opened(watched)


def test_the_best_classes_are_named(answered: Answered) -> None:
    """A classifier's scores are its classes by name, the best first, on the tile and in the log."""
    watched = answered("best", (CAR, ROAD), floats("scores", [[0.25, 0.75]]))
    labels = watched.page.locator("[data-testid='tile'] .labels li")
    labels.nth(1).wait_for(state="visible")
    assert labels.all_inner_texts() == ["road 0.75", "car 0.25"]
    assert opened(watched).split() == ["road", "0.75", "car", "0.25"]


def test_masks_of_objects_are_drawn(answered: Answered) -> None:
    """Each object's pixels have its class's colour, the better one's where two overlap; the rest is transparent."""
    masks = np.zeros((2, HEIGHT, WIDTH), np.uint8)
    masks[0, 10:30, 10:30] = 1
    masks[1, 20:40, 20:40] = 1
    found = boxes((10, 10, 30, 30), (20, 20, 40, 40), classes=(0, 1))
    watched = answered("objects", (CAR, ROAD), *found, encode_tensor("masks", masks, "raw"))
    _, pixels = mask_pixels(watched, "car-objects")
    assert np.array_equal(pixels[:, :, 3] == 255, masks.any(axis=0))
    assert (pixels[masks[0] == 1][:, :3] == CAR.colour).all()
    assert (pixels[(masks[1] == 1) & (masks[0] == 0)][:, :3] == ROAD.colour).all()
    for name in ("car", "road"):
        watched.page.get_by_test_id("legend").get_by_text(name).wait_for(state="visible")


def test_labels_cover_no_other(answered: Answered) -> None:
    """Of two boxes at nearly the same place both labels are whole; the log says both with score and corners."""
    watched = answered("boxes", (CAR, ROAD), *boxes((30, 30, 70, 50), (31, 30, 71, 50), classes=(0, 1)))
    rows = watched.page.evaluate(
        """(colours) => {
            const canvas = document.querySelector("[data-testid='tile'] canvas.boxes");
            const { width, height } = canvas;
            const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            return colours.map(([red, green, blue]) => {
                let rows = 0;
                for (let y = 0; y < height; y++) {
                    const row = Array.from({ length: width }, (_, x) => 4 * (y * width + x));
                    const own = row.filter((at) => data[at] === red && data[at + 1] === green && data[at + 2] === blue);
                    rows += own.length >= 10 ? 1 : 0;
                }
                return rows;
            });
        }""",
        [CAR.colour, ROAD.colour],
    )
    assert min(rows) >= LABEL_ROWS
    said = opened(watched).split("\n")
    assert said == ["car", "0.90 at 30, 30 to 70, 50", "road", "0.80 at 31, 30 to 71, 50"]


def test_objects_have_ids_where_that_is_asked_for(answered: Answered, publisher: Publisher) -> None:
    """With `i` the label of a box has its object's id from the next frame on, and a link to the page asks for ids."""
    watched = answered("ids", (CAR,), *boxes((10, 30, 14, 50), classes=(0,)))
    plain = label_width(watched)
    watched.page.keyboard.press("i")
    assert watched.page.url.endswith("ids=1")
    publisher.result(Stream("car-ids", "/front", "ids"), 2, *boxes((11, 30, 15, 50), classes=(0,)))
    watched.page.wait_for_selector("[data-testid='tile'][data-sequence='2']")
    watched.frames(2)
    assert label_width(watched) > plain + 8


def label_width(watched: Watched) -> int:
    """Return how many pixels of the page's only label are in a row, at most."""
    width: int = watched.page.evaluate(
        """([red, green, blue]) => {
            const canvas = document.querySelector("[data-testid='tile'] canvas.boxes");
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            const counts = new Array(height).fill(0);
            for (let at = 0; at < data.length; at += 4) {
                const isOwn = data[at] === red && data[at + 1] === green && data[at + 2] === blue;
                counts[Math.floor(at / 4 / width)] += isOwn ? 1 : 0;
            }
            return Math.max(...counts);
        }""",
        CAR.colour,
    )
    return width


def test_key_points_are_drawn_with_the_lines_between_them(answered: Answered) -> None:
    """In the colour of the class, by the names on its card; the middle of a line to a point out of sight is empty."""
    dog = ClassInfo("dog", (200, 30, 30), ("nose", "tail", "ear"), (("nose", "tail"), ("tail", "ear")))
    points = [[[20, 30, 0.9], [60, 30, 0.9], [60, 50, 0.1]]]
    watched = answered("pose", (dog,), *boxes((10, 10, 80, 56), classes=(0,)), floats("keypoints", points))
    places = [(20, 30), (40, 30), (60, 30), (60, 40), (60, 50)]
    drawn = watched.page.evaluate(
        """([places, width, height]) => {
            const canvas = document.querySelector("[data-testid='tile'] canvas.boxes");
            const context = canvas.getContext("2d");
            return places.map(([x, y]) => {
                const [left, top] = [x * canvas.width / width - 2, y * canvas.height / height - 2];
                const { data } = context.getImageData(left, top, 5, 5);
                const drawn = [...Array(25).keys()].filter((at) => data[4 * at + 3] > 64);
                return drawn.some((at) => data[4 * at] > 180 && data[4 * at + 1] < 60 && data[4 * at + 2] < 60);
            });
        }""",
        [places, WIDTH, HEIGHT],
    )
    assert drawn == [True, True, True, False, False]


@pytest.mark.parametrize("name", ["background", "road"])
def test_class_0_is_black_only_where_it_is_a_background(answered: Answered, name: str) -> None:
    """A class 0 whose name means a thing has another colour than the default, black; as in the pictures of edges."""
    classes = ClassInfo(name, (0, 0, 0)), CAR
    mask = np.zeros((1, HEIGHT, WIDTH), np.uint8)
    mask[0, 20:] = 1
    watched = answered(f"zero-{name}", classes, encode_tensor("output", mask, "mask"))
    _, pixels = mask_pixels(watched, f"car-zero-{name}")
    assert np.array_equal(pixels[:, :, :3], palette(classes)[mask[0]])
    assert pixels[0, 0, :3].any() == (name != "background")
