-- What a repetition has in common with the task it repeats: every column that is not about one run. $1: the table; $2: columns
-- to leave out beside those.
SELECT coalesce(string_agg(', ' || quote_ident(a.attname), '' ORDER BY a.attnum), ''),
    coalesce(string_agg(', t.' || quote_ident(a.attname), '' ORDER BY a.attnum), '')
FROM pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
    AND coalesce(to_jsonb(a) ->> 'attgenerated', '') = '' AND coalesce(to_jsonb(a) ->> 'attidentity', '') = ''
    AND a.attname NOT IN ('id', 'plan', 'parent', 'start', 'stop', 'pid', 'state', 'error', 'output', 'attempts', 'origin', 'chain', 'hash')
    AND a.attname <> ALL ($2::name[])
