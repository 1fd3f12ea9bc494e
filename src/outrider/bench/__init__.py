"""Measuring and checking: prompt sets, the alternating runner, reports, result bundles, the losslessness check."""
