"""Opens a report of `study report --out DIR` in headless Chromium, at phone and desktop width, light and dark.

    python3 examples/study/check_report.py DIR [--screenshots FOLDER]

Says what is wrong, a line each, and exits with 1 if anything is: a figure that is not to be seen or that has no line, text
or lines that cannot be told from the ground, a page that is wider than its window, words that are too small to be read.
Exits with 2 where there is no Chromium.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Run inside the page, which is a frame as wide as the window that is tried: headless windows have a least width.
PROBE = """<script>addEventListener('load', () => {
  const wrong = [];
  const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = numbers(colour).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const contrast = colour => {
    const one = light(colour);
    return (Math.max(one, ground) + .05) / (Math.min(one, ground) + .05);
  };
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) wrong.push(`the page is ${page.scrollWidth} wide in a window of ${innerWidth}`);
  if (contrast(getComputedStyle(document.body).color) < 7) wrong.push('the text is faint');
  const sections = [...document.querySelectorAll('section')];
  if (!sections.length) wrong.push('no figures');
  for (const section of sections) {
    const say = what => wrong.push(`${section.id}: ${what}`);
    const shown = [...section.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0);
    if (shown.length != 1) { say(`${shown.length} pictures are shown`); continue; }
    const box = shown[0].getBoundingClientRect();
    if (box.right > innerWidth + 1 || box.height < 100) say(`its picture is ${box.width} by ${box.height}`);
    const lines = [...shown[0].querySelectorAll('polyline,circle')].filter(line => {
      const paint = getComputedStyle(line);
      const colour = paint.stroke != 'none' ? paint.stroke : paint.fill;
      return contrast(colour) >= 3 && line.getBoundingClientRect().width > 0;
    });
    if (!lines.length) say('no line is to be seen');
    for (const words of shown[0].querySelectorAll('text')) {
      const seen = words.getBoundingClientRect();
      const high = parseFloat(getComputedStyle(words).fontSize) * box.width / shown[0].viewBox.baseVal.width;
      if (high < 9) say(`'${words.textContent.trim()}' is ${high.toFixed(1)} px high`);
      if (contrast(getComputedStyle(words).fill) < 4.5) say(`'${words.textContent.trim()}' is faint`);
      if (seen.left < box.left - 1 || seen.right > box.right + 1) say(`'${words.textContent.trim()}' is cut off`);
    }
    if (section.querySelector('figcaption').textContent.trim().length < 20) say('no sentence');
    if (!section.querySelector('td')) say('no numbers');
  }
  parent.postMessage({figures: sections.length, width: innerWidth, height: page.scrollHeight,
                      dark: matchMedia('(prefers-color-scheme: dark)').matches, wrong}, '*');
})</script>"""

OUTER = """<!doctype html><style>body{margin:0}iframe{border:0;display:block}</style><pre id="said"></pre>
<iframe width="%d" height="%d" src="page.html"></iframe>
<script>addEventListener('message', event => {
  document.getElementById('said').textContent = JSON.stringify(event.data);
  document.getElementById('said').hidden = true;
})</script>"""


def chromium():
    for name in ["chromium", "chromium-browser", "google-chrome"]:
        if shutil.which(name):
            return name
    print("no Chromium here")
    sys.exit(2)


def run(browser, scheme, folder, *more):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=10000",
               f"--user-data-dir={folder}/profile", *more, f"file://{folder}/outer.html"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("--screenshots", type=pathlib.Path)
    asked = arguments.parse_args()
    page = (asked.report / "index.html").read_text()
    browser = chromium()
    bad = 0
    for width, device in [(390, "phone"), (1280, "desktop")]:
        for scheme, light in [(1, "light"), (0, "dark")]:
            with tempfile.TemporaryDirectory() as folder:
                place = pathlib.Path(folder)
                (place / "page.html").write_text(page.replace("</body>", PROBE + "</body>"))
                (place / "outer.html").write_text(OUTER % (width, 900))
                dom = run(browser, scheme, folder, "--dump-dom")
                found = re.search(r'<pre id="said"[^>]*>(.+?)</pre>', dom, re.S)
                if not found:
                    print(f"{device}, {light}: the page did not answer")
                    bad += 1
                    continue
                said = json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
                wrong = said["wrong"]
                if said["dark"] != (light == "dark"):
                    wrong.append("the browser would not change its colours")
                if said["width"] != width:
                    wrong.append(f"the window is {said['width']} wide")
                if asked.screenshots:
                    asked.screenshots.mkdir(parents=True, exist_ok=True)
                    high = min(said["height"], 12000)
                    (place / "outer.html").write_text(OUTER % (width, high))
                    shot = asked.screenshots / f"{device}-{light}.png"
                    run(browser, scheme, folder, f"--window-size={max(width, 500)},{high}",
                        f"--screenshot={shot.resolve()}")
                for one in wrong:
                    print(f"{device}, {light}: {one}")
                bad += len(wrong)
                print(f"{device}, {light}: {said['figures']} figures, {len(wrong)} wrong")
    sys.exit(1 if bad else 0)


main()
