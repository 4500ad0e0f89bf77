-- Finds the columns that the next run of a task copies: all that do not describe a single run. $1: the table; $2: more columns
-- to leave out. Returns the names, and the values of a row named t.
SELECT coalesce(string_agg(', ' || quote_ident(a.attname), '' ORDER BY a.attnum), ''),
    coalesce(string_agg(', t.' || quote_ident(a.attname), '' ORDER BY a.attnum), '')
FROM pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
    AND coalesce(to_jsonb(a) ->> 'attgenerated', '') = '' AND coalesce(to_jsonb(a) ->> 'attidentity', '') = ''
    AND a.attname NOT IN ('id', 'plan', 'parent', 'start', 'stop', 'pid', 'state', 'error', 'output', 'attempts', 'origin', 'chain', 'hash')
    AND a.attname <> ALL ($2::name[])
