"""Supervised fine-tuning: scripted demonstrations, the dataset made from them, the token objective and its trainer."""
