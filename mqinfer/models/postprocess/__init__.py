"""What is done with a model's outputs before they travel: top classes, class masks of logits, boxes of candidates."""
