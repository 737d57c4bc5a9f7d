"""Policies: prompt, normalisation, action codec, grammar, the Molmo2 network, sampler and log-probabilities."""
