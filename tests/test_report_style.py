"""How the page looks: contrast, colours for the colour-blind, and a browser's measures of it."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from slotflow.report.page import TEMPLATES, render
from tests.report_example import example_report
from tests.test_report_page import changed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2)."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def schemes() -> tuple[dict[str, str], dict[str, str]]:
    style = (TEMPLATES / "style.css.j2").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    pairs = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part)) for part in (light, dark)]
    assert pairs[0].keys() == pairs[1].keys()
    return pairs[0], pairs[1]


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_text_and_lines_have_contrast_enough(scheme: dict[str, str]):
    for name in ("ink", "soft", "link", "good", "bad"):
        assert contrast(scheme[name], scheme["ground"]) >= 4.5, name
    for name in ("ink", "good", "bad", "soft"):
        assert contrast(scheme[name], scheme["shade"]) >= 4.5, name
    for i in range(6):
        assert contrast(scheme[f"c{i}"], scheme["ground"]) >= 4.5
        assert contrast(scheme[f"c{i}"], scheme["band"]) >= 3.0
    assert contrast(scheme["bad"], scheme["band"]) >= 3.0
    half = [
        round(0.5 * int(scheme["c0"][i : i + 2], 16) + 0.5 * int(scheme["ground"][i : i + 2], 16))
        for i in (1, 3, 5)
    ]  # the darkest cell of a confusion matrix
    assert contrast(scheme["ink"], "#" + "".join(f"{v:02x}" for v in half)) >= 4.5


#: What protanopes, deuteranopes and tritanopes see of linear RGB (Machado, Oliveira & Fernandes
#: 2009, IEEE TVCG 15, 1291).
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def lightness_ab(linear: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, D65."""
    xyz = linear @ np.array(
        [[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]]
    )
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 1e-4))
    return np.stack((116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])))


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_first_colours_differ_for_the_colour_blind(scheme: dict[str, str], kind: str):
    seen = []
    for i in range(4):
        parts = np.array([int(scheme[f"c{i}"][k : k + 2], 16) for k in (1, 3, 5)]) / 255.0
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        seen.append(lightness_ab(np.clip(np.array(BLINDNESS[kind]) @ linear, 0.0, 1.0)))
    for i in range(4):
        for j in range(i):
            assert np.linalg.norm(seen[i] - seen[j]) > 10.0


def test_lines_differ_by_more_than_colour():
    style = (TEMPLATES / "style.css.j2").read_text()
    dashes = dict(re.findall(r"\.line\.(s\d) \{ stroke-dasharray: ([\d. ]+);", style))
    assert len(set(dashes.values())) == 5
    assert "s0" not in dashes  # solid
    assert re.search(r"\.bad::before \{ content", style)


MEASURE = """
<script>
function measure(frame) {
  const page = frame.contentDocument, out = {};
  const wide = frame.clientWidth;
  out.over = page.documentElement.scrollWidth - wide;
  out.pictures = page.querySelectorAll('svg[role=img]').length;
  out.flat = 0; out.cut = []; out.overlap = []; out.small = 1e9;
  for (const s of page.querySelectorAll('svg[role=img]')) {
    const b = s.getBoundingClientRect();
    if (b.width < 100 || b.height < 80) out.flat++;
    const texts = [...s.querySelectorAll('text')].map(
      t => [t.textContent, t.getBoundingClientRect()]);
    for (const [t, r] of texts) {
      out.small = Math.min(out.small, Math.max(r.height, r.width));
      if (r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 1 ||
          r.bottom > b.bottom + 1) out.cut.push(s.id + ': ' + t);
    }
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const p = texts[i][1], q = texts[j][1];
      if (p.left < q.right - 2 && q.left < p.right - 2 && p.top < q.bottom - 4 &&
          q.top < p.bottom - 4) out.overlap.push(s.id + ': ' + texts[i][0] + ' / ' + texts[j][0]);
    }
  }
  return out;
}
addEventListener('load', () => {
  const found = [...document.querySelectorAll('iframe')].map(measure);
  document.body.textContent = 'MEASURED' + JSON.stringify(found) + 'END';
});
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_every_picture_whole_on_phone_and_desktop(
    tmp_path: Path,
):
    report = example_report()
    small = dataclasses.replace(  # numbers whose labels are long
        report.models[0],
        breakdowns=changed(
            report.models[0].breakdowns, lambda v: 0.0137 * v if isinstance(v, float) else v
        ),
    )
    pages = [render(report), render(example_report(models=3))]
    shown = [*pages, render(dataclasses.replace(report, models=(small,)))]
    frames = "".join(
        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(page)}">'
        "</iframe>"
        for page in shown
        for width in (390, 1280)
    )
    harness = tmp_path / "harness.html"
    harness.write_text(f"<!DOCTYPE html><body>{frames}{MEASURE}</body>")
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--v=0", "--dump-dom", harness.as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    found = json.loads(html.unescape(done.stdout.split("MEASURED")[1].split("END")[0]))
    assert len(found) == 6
    for one in found:
        assert one["pictures"] > 50
        assert one["over"] <= 0
        assert one["flat"] == 0
        assert one["cut"] == []
        assert one["overlap"] == []
        assert one["small"] >= 9.0
