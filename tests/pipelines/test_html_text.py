"""HTML to text: blocks, white space, references, and input that is no HTML."""

import gzip
import itertools
import json
import lzma
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pipelines.html_text import html_to_text


@pytest.mark.parametrize(
  ('source', 'text'),
  [
    ('', ''),
    ('plain  text\n', 'plain text'),
    ('<p>a\n b</p>\n\n<p>c</p>\n', 'a b\nc'),
    ('a<br>b<br/>c<BR />d', 'a\nb\nc\nd'),
    ('<h1>t</h1><ul><li>a</li>\n<li>b <ol><li>c</ol></ul>d', 't\na\nb\nc\nd'),
    ('<blockquote>\n<p>a</p>\n</blockquote><hr>b', 'a\nb'),
    # Within a line, tags leave no space.
    (
      '<p>un<em>believ</em>able <a href="x">link</a>.</p>',
      'unbelievable link.',
    ),
    ('<p>use <code>x  =  1</code></p>', 'use x = 1'),
    ('<table><tr><th>a</th><td>b</td></tr><tr><td>c</table>', 'a b\nc'),
    # Not within `pre`: but its first and last line ends are not the text's.
    ('<pre><code>\nif a:\n\n    b\n</code></pre>c', 'if a:\n\n    b\nc'),
    ('<pre>a\r\n  b<br>c</pre>', 'a\n  b\nc'),
    ('<pre>a<pre> b</pre> c</pre>  d  e', 'a\n b\n c\nd e'),
    ('</pre>a  b<pre>c  d</pre>', 'a b\nc  d'),
    ('<pre>\n \n</pre>a', 'a'),
    (
      '&lt;p&gt; &amp;amp; &quot;&#65;&#x42;&nbsp;&hellip;&lt',
      '<p> &amp; "AB …<',
    ),
    ('<p>&nbsp;</p><pre>&#10;&#32;</pre>', ''),
    ('a<img src="x" alt="> no text">b', 'ab'),
    ("a<img alt='>'>b<img title=it's>c", 'abc'),
    ('a<script>if (x < y) <p>z</p></script>b<style>c</STYLE>d', 'abd'),
    ('</script>a<script>b', 'a'),
    ('a<!-- <p> b -->c<!---->d<!-- e', 'acd<!-- e'),
    ('<!DOCTYPE html><?xml version="1.0"?>a', 'a'),
    # What is no tag is text.
    ('a < b <3 <> </> c > d', 'a < b <3 <> </> c > d'),
    ('a <b', 'a <b'),
    ('<img alt="a < b">', '<img alt="a < b">'),
    ('&#0; &#xD800; &#99999999; &#', '\ufffd \ufffd \ufffd &#'),
    (
      '&#' + '0' * 9999 + '65;&#' + '1' * 9999 + ';&#x' + 'f' * 9999,
      'A\ufffd\ufffd',
    ),
  ],
)
def test_text(source, text):
  assert html_to_text(source) == text


@pytest.mark.parametrize(
  'piece',
  ['<', '&', '<a ', '<a "', '<a ">" ', '<!--', '<!---->', '</p', '<pre>']
  + ['<script>', '&#1', '&' + 'a' * 33, '<p', '"', '<?', '-->'],
)
def test_hostile_input_takes_linear_time(piece):
  source = piece * (500_000 // len(piece))
  # Of this thread alone: what else the machine does is not counted.
  start = time.thread_time()
  html_to_text(source)
  # 0.4 s at most where this was measured; quadratic work takes minutes.
  assert time.thread_time() - start < 20


class _TextOnly(HTMLParser):
  def __init__(self):
    super().__init__()
    self.pieces = []

  def handle_data(self, data):
    self.pieces.append(data)


def _spaces(text):
  """Returns how many other characters stand before each stretch of spaces."""
  words = text.split()
  return set(itertools.accumulate(len(word) for word in words))


@pytest.mark.parametrize(
  'site',
  ['ai.stackexchange.com', 'bicycles.meta.stackexchange.com'],
)
def test_real_posts(shared_data, site):
  directory = shared_data('stackexchange_dev') / site
  id_to_text = {}
  with gzip.open(directory / 'posts.jsonl.gz') as lines:
    for line in lines:
      post = json.loads(line)
      id_to_text[post['url'].rsplit('/', 1)[1]] = post['text']
  with lzma.open(directory / 'Posts.xml.xz') as file:
    rows = [row.attrib for row in ElementTree.parse(file).getroot()]
  for row in rows:
    text = html_to_text(row['Body'])
    parser = _TextOnly()
    parser.feed(row['Body'])
    parser.close()
    # Every character but white space is as html.parser has it ...
    assert ''.join(text.split()) == ''.join(''.join(parser.pieces).split())
    # ... and as the reference, which puts a space beside every tag, has it.
    if expected := id_to_text.pop(row['Id'], None):
      assert ''.join(text.split()) == ''.join(expected.split())
      assert _spaces(text) <= _spaces(expected)
  assert not any(id_to_text.values())
