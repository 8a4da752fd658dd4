"""Hidden Markov language models at scale."""
