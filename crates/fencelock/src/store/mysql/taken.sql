-- Whether the statement before has entered, and with which number.
SELECT ROW_COUNT(), LAST_INSERT_ID();
