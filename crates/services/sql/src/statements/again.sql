again AS (
    INSERT INTO {table} (plan, parent, chain, state{names})
    SELECT m.next, t.id, coalesce(t.chain, t.id), 'PLAN'{values} FROM mine m JOIN {table} t ON t.id = m.id
    WHERE m.next IS NOT NULL AND NOT m.stopped),
