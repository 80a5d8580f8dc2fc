-- Enters a line that is empty, by one statement and without a transaction around it: {name}, {id}, {weight}, {capacity}, {mode},
-- {client}, {owner}, {held}, {host}, {pid}, {identity}, {reason}, {value}, {lease}. One changed row: it is in, and its number is the
-- statement's insert id. None: somebody is there, or there is no such line.
UPDATE fencelock_line SET last = LAST_INSERT_ID(last + 1), number = last,
  touched = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), entered = touched, expiry = touched + {lease}, id = {id},
  weight = {weight}, capacity = {capacity}, mode = {mode}, client = {client}, owner = {owner}, pid = {pid}, held = {held},
  host = {host}, identity = {identity}, reason = {reason}, value = {value}
  WHERE name = {name} AND many = 0 AND expiry <= CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)
