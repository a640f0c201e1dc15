"""How a page looks, in figures: its contrasts as it computes them itself, its brightness as its picture has it."""

from __future__ import annotations

import zlib

TEXT_OF_LOW_CONTRAST = """(() => {
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const seen = element.checkVisibility() && !element.closest("script, noscript, .unseen, option");
    if (!texts.currentNode.data.trim() || !seen) continue;
    const [dark, bright] = [getComputedStyle(element).color, ground(element)].map(light).sort((a, b) => a - b);
    if ((bright + 0.05) / (dark + 0.05) < 4.5) low.push(texts.currentNode.data);
  }
  return low;
})()"""
"""An expression: every text that is seen with less contrast to its ground than 4.5, which WCAG AA asks for."""


def looks(png: bytes) -> tuple[float, int]:
    """Mean brightness of a picture, 0 to 255, and how many colours it has."""
    width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    channels = {2: 3, 6: 4}[png[25]]
    packed, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += 12 + length
    data, line = zlib.decompress(packed), 1 + width * channels
    above = bytes(width * channels)
    pixels = bytearray()
    for start in range(0, height * line, line):
        above = _unfiltered(data[start], data[start + 1 : start + line], above, channels)
        pixels += above
    colours = {bytes(pixels[at : at + 3]) for at in range(0, len(pixels), channels)}
    return sum(pixels[1::channels]) / (width * height), len(colours)


def _unfiltered(kind: int, row: bytes, above: bytes, step: int) -> bytes:
    """A line of a PNG: each byte was stored as the difference to what its filter foretells."""
    out = bytearray(row)
    for at in range(len(row)):
        left, up = (out[at - step] if at >= step else 0), above[at]
        corner = above[at - step] if at >= step else 0
        paeth = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
        out[at] = (row[at] + (0, left, up, (left + up) // 2, paeth)[kind]) % 256
    return bytes(out)
