-- Checks cron and zone when a row is inserted, and sets the plan of a row that has none to its next time. The rules are those
-- of `schedule::cron` in the core, by which the scheduler plans the runs that follow.

-- The values that a field allows: `*`, `5`, `5-10`, lists of them, each with a step; names count from the lowest.
CREATE OR REPLACE FUNCTION "schema".taskyard_cron_field(word text, field text, low integer, high integer, names text[])
RETURNS integer[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    part text;
    p text[];
    a integer;
    b integer;
    step integer;
    found integer[] := '{}';
BEGIN
    FOREACH part IN ARRAY string_to_array(lower(word), ',') LOOP
        SELECT m INTO p FROM regexp_matches(part, '^(?:([*?])|([a-z]+|\d{1,4})(?:-([a-z]+|\d{1,4}))?)(/(\d{1,4}))?$') AS m;
        step := coalesce(p[5]::integer, 1);
        a := CASE WHEN p[1] IS NOT NULL THEN low WHEN p[2] ~ '\d' THEN p[2]::integer
            ELSE array_position(names, p[2]) - 1 + low END;
        b := CASE WHEN p[1] IS NOT NULL THEN high WHEN p[3] ~ '\d' THEN p[3]::integer
            WHEN p[3] IS NOT NULL THEN array_position(names, p[3]) - 1 + low WHEN p[4] IS NOT NULL THEN high ELSE a END;
        IF p IS NULL OR a IS NULL OR b IS NULL OR step < 1 OR a < low OR b > high OR a > b THEN
            RAISE '''%'' is no % of a cron expression (%-%)', word, field, low, high USING ERRCODE = '22023';
        END IF;
        found := found || ARRAY(SELECT generate_series(a, b, step));
    END LOOP;
    RETURN found;
END $body$;

-- The first second of a day, from this one on, that the hours, minutes and seconds allow.
CREATE OR REPLACE FUNCTION "schema".taskyard_cron_time(least_second integer, hours integer[], minutes integer[], seconds integer[])
RETURNS integer LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
SELECT coalesce(
    CASE WHEN l.h = ANY (hours) AND l.m = ANY (minutes)
        THEN l.h * 3600 + l.m * 60 + (SELECT min(v) FROM unnest(seconds) AS v WHERE v >= l.s) END,
    CASE WHEN l.h = ANY (hours)
        THEN l.h * 3600 + (SELECT min(v) FROM unnest(minutes) AS v WHERE v > l.m) * 60
            + (SELECT min(v) FROM unnest(seconds) AS v) END,
    (SELECT min(v) FROM unnest(hours) AS v WHERE v > l.h) * 3600 + (SELECT min(v) FROM unnest(minutes) AS v) * 60
        + (SELECT min(v) FROM unnest(seconds) AS v))
FROM (SELECT least_second / 3600 AS h, least_second / 60 % 60 AS m, least_second % 60 AS s) AS l
$body$;

-- The offset of a time zone from UTC at a time.
CREATE OR REPLACE FUNCTION "schema".taskyard_cron_offset(moment timestamptz, zone text)
RETURNS interval LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
SELECT (moment AT TIME ZONE zone) - (moment AT TIME ZONE 'UTC')
$body$;

-- The times at which clocks show `shown`: one; two where they were set back; the end of the gap where they were set forward.
CREATE OR REPLACE FUNCTION "schema".taskyard_cron_moments(shown timestamp, zone text)
RETURNS timestamptz[] LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    utc CONSTANT timestamptz := shown AT TIME ZONE 'UTC';
    before CONSTANT interval := "schema".taskyard_cron_offset(utc - interval '24 hours', zone);
    after CONSTANT interval := "schema".taskyard_cron_offset(utc + interval '24 hours', zone);
    fits_before CONSTANT boolean := "schema".taskyard_cron_offset(utc - before, zone) = before;
    fits_after CONSTANT boolean := "schema".taskyard_cron_offset(utc - after, zone) = after;
    early timestamptz := utc - before - interval '24 hours';
    late timestamptz := utc - before;
    middle timestamptz;
BEGIN
    IF fits_before AND fits_after AND before <> after THEN
        RETURN ARRAY[least(utc - before, utc - after), greatest(utc - before, utc - after)];
    ELSIF fits_before THEN
        RETURN ARRAY[utc - before];
    ELSIF fits_after THEN
        RETURN ARRAY[utc - after];
    END IF;
    WHILE late - early > interval '1 second' LOOP
        middle := date_trunc('second', early + (late - early) / 2);
        IF "schema".taskyard_cron_offset(middle, zone) = before THEN early := middle; ELSE late := middle; END IF;
    END LOOP;
    RETURN ARRAY[late];
END $body$;

-- The first time after `moment`. Refuses an invalid expression, and one without a day in the next nine years.
CREATE OR REPLACE FUNCTION "schema".taskyard_cron_next(cron text, zone text, moment timestamptz)
RETURNS timestamptz LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    long CONSTANT text := CASE btrim(cron, E' \t\r\n') WHEN '@yearly' THEN '0 0 1 1 *' WHEN '@annually' THEN '0 0 1 1 *'
        WHEN '@monthly' THEN '0 0 1 * *' WHEN '@weekly' THEN '0 0 * * 0' WHEN '@daily' THEN '0 0 * * *'
        WHEN '@midnight' THEN '0 0 * * *' WHEN '@hourly' THEN '0 * * * *' ELSE btrim(cron, E' \t\r\n') END;
    words text[] := regexp_split_to_array(long, '\s+');
    shown timestamp := moment AT TIME ZONE zone;
    best timestamptz;
    moments timestamptz[];
    h integer[];
    m integer[];
    s integer[];
    d integer[];
    o integer[];
    w integer[];
    both_days boolean;
    every_hour boolean;
    day date;
    second integer;
BEGIN
    IF long LIKE '@%' THEN
        RAISE '''%'' is none of @yearly, @monthly, @weekly, @daily and @hourly', long USING ERRCODE = '22023';
    ELSIF array_length(words, 1) = 5 THEN
        words := '0'::text || words;
    ELSIF array_length(words, 1) <> 6 THEN
        RAISE 'a cron expression has five fields (minute hour day month weekday) or six, not %', array_length(words, 1)
            USING ERRCODE = '22023';
    END IF;
    s := "schema".taskyard_cron_field(words[1], 'second', 0, 59, '{}');
    m := "schema".taskyard_cron_field(words[2], 'minute', 0, 59, '{}');
    h := "schema".taskyard_cron_field(words[3], 'hour', 0, 23, '{}');
    d := "schema".taskyard_cron_field(words[4], 'day of the month', 1, 31, '{}');
    o := "schema".taskyard_cron_field(words[5], 'month', 1, 12, '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}');
    w := "schema".taskyard_cron_field(words[6], 'day of the week', 0, 7, '{sun,mon,tue,wed,thu,fri,sat}');
    w := CASE WHEN 7 = ANY (w) THEN 0 || w ELSE w END;
    both_days := words[4] ~ '^[*?]' OR words[6] ~ '^[*?]';
    every_hour := 24 = (SELECT count(DISTINCT v) FROM unnest(h) AS v);
    -- Around a change of the clocks, times that clocks have shown may repeat.
    IF "schema".taskyard_cron_offset(moment - interval '3 hours', zone)
        <> "schema".taskyard_cron_offset(moment + interval '3 hours', zone) THEN
        shown := shown - interval '3 hours';
    END IF;
    shown := date_trunc('second', shown + interval '999999 microseconds');
    day := shown::date;
    second := extract(epoch FROM shown - date_trunc('day', shown))::integer;
    FOR looked IN 1..3294 LOOP
        IF extract(month FROM day)::integer = ANY (o) AND (CASE WHEN both_days
            THEN extract(day FROM day)::integer = ANY (d) AND extract(dow FROM day)::integer = ANY (w)
            ELSE extract(day FROM day)::integer = ANY (d) OR extract(dow FROM day)::integer = ANY (w) END) THEN
            LOOP
                second := "schema".taskyard_cron_time(second, h, m, s);
                EXIT WHEN second IS NULL;
                moments := "schema".taskyard_cron_moments(day + second * interval '1 second', zone);
                IF moments[1] >= best THEN
                    RETURN best;
                END IF;
                best := least(best, CASE WHEN moments[1] > moment THEN moments[1]
                    WHEN moments[2] > moment AND every_hour THEN moments[2] END);
                second := second + 1;
                EXIT WHEN second >= 86400;
            END LOOP;
        END IF;
        day := day + 1;
        second := 0;
    END LOOP;
    IF best IS NULL THEN
        RAISE 'the cron expression ''%'' names no day that comes', cron USING ERRCODE = '22023';
    END IF;
    RETURN best;
END $body$;

CREATE OR REPLACE FUNCTION "schema".taskyard_cron() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    next timestamptz;
BEGIN
    -- The database refuses an unknown time zone.
    PERFORM statement_timestamp() AT TIME ZONE NEW.zone;
    IF NEW.cron IS NOT NULL THEN
        next := "schema".taskyard_cron_next(NEW.cron, coalesce(NEW.zone, "schema".taskyard_zone()), statement_timestamp());
        IF TG_OP = 'INSERT' AND NEW.plan IN (statement_timestamp(), transaction_timestamp()) THEN
            NEW.plan := next;
        END IF;
    END IF;
    RETURN NEW;
END $body$;
