"""The numbers of the documented pictures, in one place, so that a digest can name them without loading what uses them.

In: nothing. Out: constants, with units in their names. Formulas: `lens`, `optics`, `shadow`, `appearance`. Clutter has
its own table in `clutter`.
"""

from __future__ import annotations

import math

# Pixel sizes are quoted for pictures with this many rows.
REFERENCE_ROWS = 480

# Top camera: position (m), angle off vertical towards +x (degrees). Wrist camera: pose in the gripper's frame (m,
# quaternion wxyz), which upstream's bracket shares. Both: vertical field of view (degrees).
CAMERAS = {
    "top_pos_m": (-0.02, -0.125, 0.555),
    "top_pitch_deg": 25.0,
    "wrist_pos_m": (0.02416, -0.05504, 0.03225),
    "wrist_quat": (-0.24345, -0.05192, 0.02663, 0.96816),
    "fovy_deg": 52.0,
}

# A lens with the centre magnification of a 52 degree pinhole is made from a 72 degree one.
LENS_CENTRE_DEG, LENS_SOURCE_DEG = 52.0, 72.0
# (k2, k4) of theta = rho (1 + k2 rho^2 + k4 rho^4), rho = r / f.
EQUIDISTANT, FITTED_WRIST = (0.0, 0.0), (0.10135, -0.03567)

# Per camera: gain of each channel, bias of each channel in counts.
GRADE = {
    "top": ((0.8149, 0.8607, 0.8889), (30.61, 26.29, 29.44)),
    "wrist": ((0.7432, 0.7720, 0.8600), (57.88, 54.04, 47.57)),
}

SHADOW_LIGHT = (-0.1913, 0.4619, -0.8660)  # the way the light travels, world frame
SHADOW_MIN_HEIGHT_M = 0.003  # lower points rest on the table; they would only add the noise of the depth buffer

# Uniform ranges of what is drawn at each reset, in this order; angles in radians, the rest are factors.
JITTER = {
    "tint": (0.72, 0.92),
    "cast": (-0.06, 0.04),
    "sun_tilt_rad": (0.0, 0.45),
    "sun_azimuth_rad": (-math.pi, math.pi),
    "sun_gain": (0.85, 1.18),
    "warmth": (-0.05, 0.07),
    "fill_gain": (0.8, 1.2),
    "table_gain": (0.94, 1.06),
}
