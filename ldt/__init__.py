"""ldt: NLP on long documents, from short encoder to answers."""

__version__ = "0.1.0"
