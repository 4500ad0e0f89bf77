-- Numbered and never edited: a change of the format is a new file.

-- Reserved for unique keys.
