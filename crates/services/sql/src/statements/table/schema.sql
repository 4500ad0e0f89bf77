-- Creates the schema and the type of the states, or adds missing states to it. Where nothing is missing nothing is changed,
-- and no right is needed.
DO $taskyard$
DECLARE
    s CONSTANT text := {schema_text};
    labels CONSTANT text[] := {labels};
    label text;
BEGIN
    -- Held until the end of the transaction, which includes the other parts.
    PERFORM pg_advisory_xact_lock(hashtext('taskyard.sql'), hashtext(s || '.' || {table_text}));
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = s) THEN
        EXECUTE format('CREATE SCHEMA %I', s);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_type WHERE typname = 'state' AND typnamespace = quote_ident(s)::regnamespace) THEN
        EXECUTE format('CREATE TYPE %I.state AS ENUM (%s)', s,
            (SELECT string_agg(quote_literal(l), ', ' ORDER BY n) FROM unnest(labels) WITH ORDINALITY AS u(l, n)));
    END IF;
    FOREACH label IN ARRAY labels LOOP
        IF NOT EXISTS (SELECT FROM pg_enum WHERE enumlabel = label
                AND enumtypid = format('%I.state', s)::regtype) THEN
            EXECUTE format('ALTER TYPE %I.state ADD VALUE %L', s, label);
        END IF;
    END LOOP;
END
$taskyard$;
