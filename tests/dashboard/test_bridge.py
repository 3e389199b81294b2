"""The page at a site whose workers are at NATS, behind two bridges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.lab.drives.labels import CLASSES
from tests.broker.nats.server import NatsServer
from tests.dashboard.chromium import Figure, PageOf, script
from tests.dashboard.pixels import mask_pixels
from tests.dashboard.running import running_site
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full]  # processes


def test_workers_behind_a_bridge(tmp_path: Path, page_of: PageOf, figure: Figure) -> None:
    """Their results are drawn as they are, and one that is killed is marked lost while the other goes on."""
    with NatsServer() as far, running_site(tmp_path, far=far.url) as site:
        watched = page_of(site.url)
        watched.wait_for_tiles(len(site.edges))
        colours = palette(CLASSES)
        for _ in range(5):
            sequence, pixels = mask_pixels(watched, "car-3")
            mask = site.witness.mask("car-3", "/camera/image_raw", sequence)
            assert np.array_equal(pixels[:, :, :3], colours[mask])
        watched.show("workers")
        watched.page.wait_for_selector("[data-testid='worker-row'][data-name='gpu-b.0'][data-status='ready']")
        watched.page.evaluate(script("note_lost"), "gpu-b.")
        site.workers["gpu-b"].kill()
        wait_until(lambda: site.witness.state_came("gpu-b.0", "lost") is not None)
        watched.page.wait_for_function("() => window.lostAt['gpu-b.0'] !== undefined")
        came = site.witness.state_came("gpu-b.0", "lost")
        assert came is not None
        took = watched.page.evaluate("() => window.lostAt['gpu-b.0']") / 1000 - came
        figure("a killed worker behind a bridge is marked lost after its will by", f"{1000 * took:.0f} ms")
        results = site.witness.results_of("car-1")
        wait_until(lambda: site.witness.results_of("car-1") > results + 2)
        assert watched.problems == []
