"""Typed configuration: schemas, composition, reading and allow-listed building (no torch, no mujoco)."""
