"""The toy world and the tiny policy live beside the rollout tests; worker processes inherit this path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))
