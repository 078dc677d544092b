-- Which key secrets and log-ins are sealed with: changed with them, in one go.
CREATE TABLE vault_key (
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  fingerprint TEXT NOT NULL
);
