"""What a person sees: progress while a run works, tables when it has ended, mirrors to trackers. No torch at import."""
