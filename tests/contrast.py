"""Whether text of a page stands out from what is behind it, as the WCAG computes it."""

from __future__ import annotations

from typing import Any

LEAST = 4.5
"""AA for text of ordinary size."""

_FOUND = """root => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const lit = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const bright = ([r, g, b]) => 0.2126 * lit(r) + 0.7152 * lit(g) + 0.0722 * lit(b);
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]); };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = {};
  for (const element of document.querySelectorAll(root + ' *')) {
    const words = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent.trim()).join('');
    const style = getComputedStyle(element);
    if (!words || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (element.closest('svg') || element.getBoundingClientRect().width < 2) continue;
    const back = behind(element), front = over(parse(style.color), back);
    const [a, b] = [bright(front), bright(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : LEAST)) found[element.className + ' ' + words.slice(0, 30)] = ratio.toFixed(2);
  }
  return Object.entries(found).map(([what, ratio]) => ratio + ' ' + what);
}""".replace("LEAST", str(LEAST))


def too_faint(page: Any, root: str) -> list[str]:
    """Text below an element that is hard to read, with its contrast."""
    return list(page.evaluate(_FOUND, root))
