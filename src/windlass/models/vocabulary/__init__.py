"""Vocabularies of other formats as tokenizer.json, without torch and without their libraries.

`scored_pieces` makes it of SentencePiece's pieces, `pretokenizers` knows where byte-level vocabularies cut a
text.
"""
