-- Takes rows out (mode=session).
DELETE FROM fencelock.session s USING unnest($1, $2) AS g (name, id) WHERE s.name = g.name AND s.id = g.id
