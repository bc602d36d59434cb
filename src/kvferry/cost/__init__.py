"""What things take: prefill, transfers and interference, learned from observations, with their spread.

Pure: time arrives as observed seconds. Estimators are folded from observations, can be saved as a profile,
merged in any grouping, and replayed. Nothing in here is taken from a data sheet.
"""

from __future__ import annotations

__all__: list[str] = []
