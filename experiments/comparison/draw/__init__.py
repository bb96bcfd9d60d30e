"""Plots by hand: lines, bars, lanes as inline SVG, and the style that colours them."""
