-- Repeated with other numbers; reaches parser, planner, trees, sorter, windows, json, text search, functions.
.mode list
PRAGMA cache_size = 200;
PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL, tag TEXT, data BLOB);
CREATE INDEX item_price ON item(price);
CREATE INDEX item_tag ON item(tag, price DESC);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)
INSERT INTO item SELECT i, printf('item %05d', i * @ % 99991), ((i + @) * 7919 % 10007) / 100.0, 'tag' || ((i * @) % 37),
                        CAST(hex(i * 31 + @) AS BLOB) FROM n;
CREATE TABLE sale(day INTEGER, item INTEGER REFERENCES item(id), amount INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 15000)
INSERT INTO sale SELECT (i + @) % 365, i * 104729 % 12000 + 1, i % 11 FROM n;
SELECT count(*), sum(price), min(price), max(price), avg(length(data)), total(id * 1.5) FROM item;
SELECT tag, count(*), round(avg(price), 3), group_concat(DISTINCT id % 5) FROM item GROUP BY tag ORDER BY 2 DESC, 1;
SELECT day, total, sum(total) OVER (ORDER BY day ROWS 3 PRECEDING), rank() OVER (ORDER BY total DESC), ntile(7) OVER (ORDER BY day)
FROM (SELECT day, sum(amount) AS total FROM sale GROUP BY day) ORDER BY day LIMIT 60;
CREATE VIEW dear AS SELECT i.*, s.amount FROM item i JOIN sale s ON s.item = i.id WHERE i.price > 80;
SELECT name, sum(amount) FROM dear GROUP BY name HAVING sum(amount) > 5 ORDER BY 2 DESC, 1 LIMIT 30;
SELECT upper(name), substr(name, -3), replace(tag, 'tag', '#'), quote(data), typeof(price), abs(-price), instr(name, '7'), unicode(tag)
FROM item WHERE name LIKE '%77%' OR name GLOB 'item 0[1-3]5*' ORDER BY price DESC, id LIMIT 25;
SELECT date('2024-01-01', '+' || day || ' days'), strftime('%W %j %s', 1700000000 + day * 86400, 'unixepoch'), julianday('2020-02-29')
FROM sale WHERE amount = 10 GROUP BY day ORDER BY day LIMIT 20;
CREATE TABLE log(what TEXT);
CREATE TRIGGER item_change AFTER UPDATE OF price ON item BEGIN
  INSERT INTO log VALUES (old.name || ': ' || old.price || ' -> ' || new.price);
END;
BEGIN;
UPDATE item SET price = price * 1.1 WHERE tag = 'tag7';
SAVEPOINT half;
DELETE FROM item WHERE id % 3 = 0;
SELECT count(*) FROM item;
ROLLBACK TO half;
COMMIT;
SELECT count(*), max(what) FROM log;
SELECT json_extract('{"a":[1,2,{"b":"c"}]}', '$.a[2].b'), json_group_array(id) FROM item WHERE id < 20;
SELECT value, type FROM json_each('[10,20,"thirty",null,{"x":@}]');
CREATE VIRTUAL TABLE note USING fts5(body);
INSERT INTO note SELECT name || ' costs ' || CAST(price AS INTEGER) || ' in ' || tag FROM item WHERE id <= 2000;
SELECT rowid, highlight(note, 0, '<', '>') FROM note WHERE note MATCH 'tag5 AND costs' ORDER BY rank, rowid LIMIT 15;
SELECT a.id, b.id FROM item a LEFT JOIN item b ON b.id = a.id * 2 AND b.price < a.price WHERE a.id < 40;
SELECT id FROM item WHERE id IN (SELECT item FROM sale WHERE day = 5) EXCEPT SELECT id FROM item WHERE price < 50
ORDER BY 1 LIMIT 20;
WITH RECURSIVE fib(n, a, b) AS (SELECT 1, 0, 1 UNION ALL SELECT n + 1, b, a + b FROM fib WHERE n < 80)
SELECT sum(a % 1000), max(b) FROM fib;
SELECT sum(x), avg(x), sum(length(s)) FROM (SELECT i.price * s.amount AS x, printf('%08.3f|%-10s|%+d|%x', price, tag, amount, day) AS s
FROM item i, sale s WHERE s.item = i.id);
SELECT CASE WHEN price > 50 THEN 'dear' WHEN price BETWEEN 20 AND 50 THEN 'fair' ELSE 'cheap' END AS c, count(*), round(sum(price), 2)
FROM item GROUP BY c ORDER BY c;
SELECT count(DISTINCT substr(name, 6, 3)), max(hex(randomblob(0))), coalesce(nullif(min(tag), 'x'), 'y'), round(power(2.5, 3) + ln(10), 6) FROM item;
PRAGMA integrity_check;
DROP VIEW dear;
DROP TABLE note;
DROP TABLE log;
DROP TABLE sale;
DROP TABLE item;
VACUUM;
