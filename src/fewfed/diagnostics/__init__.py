"""What happens inside a run: feature quality, who has seen whose features, what is mixed, how soon a target is met."""
