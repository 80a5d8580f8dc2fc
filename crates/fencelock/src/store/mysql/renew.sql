-- Renews a ticket: {i}, {name}, {id}, {lease}, {at_least}.
SET @r{i} = NULL;
SELECT number INTO @r{i} FROM fencelock_ticket WHERE name = {name} AND id = {id} AND expiry > @now;
UPDATE fencelock_ticket SET expiry = GREATEST(expiry, @now + {lease}) WHERE name = {name} AND number = @r{i};
UPDATE fencelock_line SET last = GREATEST(last, {at_least}) WHERE name = {name} AND @r{i} IS NOT NULL AND last < {at_least};
SELECT (SELECT expiry - @now FROM fencelock_ticket WHERE name = {name} AND number = @r{i});
