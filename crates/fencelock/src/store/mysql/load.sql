-- What a register holds: {name}; and the version of one that holds nothing.
SELECT version, value FROM fencelock_register WHERE name = {name} AND version > 0;
SELECT floor FROM fencelock_layout WHERE one = 1;
