-- Where a bound secret goes, as JSON: hosts, header, placeholder. Empty: the secret is not bound.
ALTER TABLE secrets ADD COLUMN binding TEXT NOT NULL DEFAULT '';
