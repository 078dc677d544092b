-- Answers to questions that rules ask, which count until they are forgotten.
CREATE TABLE answers (
  id        TEXT NOT NULL PRIMARY KEY,
  principal TEXT NOT NULL, -- the principal's id
  operation TEXT NOT NULL,
  detail    TEXT NOT NULL, -- exactly
  allowed   INTEGER NOT NULL,
  given_by  TEXT NOT NULL, -- the id of the principal that answered
  given     INTEGER NOT NULL -- milliseconds since 1970
);
