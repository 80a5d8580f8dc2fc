-- What changes whenever something within a scope does: {where}.
SELECT CONCAT(COUNT(*), ' ', COALESCE(MAX(touched), 0)) FROM fencelock_line WHERE {where};
