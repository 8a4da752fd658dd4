"""How numbers become start, transition and emission distributions, and the models they make."""
