-- Begins a script. A script is one packet of statements: the server runs it to its end whatever becomes of the client, so
-- nobody can hold a line's lock while it is paused.
START TRANSACTION;
