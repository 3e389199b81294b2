using System;
using System.Collections.Generic;
using System.Globalization;
using System.Text;
using System.Text.RegularExpressions;

namespace Mqinfer
{
    /// <summary>JSON from strangers to plain values: bounded in length and nesting, strict, and no key twice.</summary>
    internal sealed class Json
    {
        private const string Escapes = "\"\\/bfnrt", Escaped = "\"\\/\b\f\n\r\t";
        private static readonly Regex Numbers = new Regex(@"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\z");
        private readonly string text;
        private int at;

        private Json(string text) => this.text = text;

        /// <summary>Return the fields of an object.</summary>
        /// <param name="payload">UTF-8.</param>
        /// <param name="what">What it is, for messages.</param>
        /// <param name="most">Bytes that are accepted.</param>
        public static Fields Read(ArraySegment<byte> payload, string what, int most)
        {
            if (payload.Count > most)
                throw new LimitExceededException(what + ": " + payload.Count + " bytes of JSON; at most " + most + " are accepted");
            try
            {
                return new Fields(Parse(Mqinfer.Text.Utf8.GetString(payload.Array, payload.Offset, payload.Count)), what);
            }
            catch (Exception error) when (error is FormatException || error is ArgumentException)
            {
                throw new BadEnvelopeException(what + ": it is not JSON: " + error.Message);
            }
        }

        /// <summary>Return exactly one value.</summary>
        /// <exception cref="FormatException">It is malformed, or something follows it.</exception>
        public static object Parse(string text)
        {
            var json = new Json(text);
            object found = json.Value(0);
            json.Skip();
            if (json.at < text.Length) throw json.Malformed();
            return found;
        }

        private object Value(int depth)
        {
            Skip();
            if (depth > Nesting.Most) throw new FormatException("more than " + Nesting.Most + " objects and arrays within each other");
            char first = Peek();
            if (first == '{') return Object(depth);
            if (first == '[') return Array(depth);
            if (first == '"') return String();
            if (first == '-' || char.IsDigit(first)) return Number();
            if (Took("true")) return true;
            if (Took("false")) return false;
            if (Took("null")) return null;
            throw Malformed();
        }

        private Map Object(int depth)
        {
            var found = new Map();
            var keys = new HashSet<string>();
            at++;
            for (Skip(); Peek() != '}'; Separate('}'))
            {
                Skip();
                string key = String();
                Skip();
                Expect(':');
                if (!keys.Add(key)) throw new FormatException("the key " + Mqinfer.Text.Shown(key) + " comes twice");
                found.Add(key, Value(depth + 1));
            }
            at++;
            return found;
        }

        private List<object> Array(int depth)
        {
            var found = new List<object>();
            at++;
            for (Skip(); Peek() != ']'; Separate(']')) found.Add(Value(depth + 1));
            at++;
            return found;
        }

        /// <summary>Take the comma behind an element, unless the end comes; behind a comma no end may come.</summary>
        private void Separate(char end)
        {
            Skip();
            if (Peek() == end) return;
            Expect(',');
            Skip();
            if (Peek() == end) throw Malformed();
        }

        private string String()
        {
            var found = new StringBuilder();
            Expect('"');
            for (; Peek() != '"'; at++)
            {
                if (Peek() < ' ') throw Malformed();
                found.Append(Peek() == '\\' ? Escape() : Peek());
            }
            at++;
            return found.ToString();
        }

        /// <summary>Return what an escape stands for; it ends at its last character.</summary>
        private char Escape()
        {
            at++;
            int plain = Escapes.IndexOf(Peek());
            if (plain >= 0) return Escaped[plain];
            if (Peek() != 'u' || at + 4 >= text.Length) throw Malformed();
            at += 4;
            const NumberStyles hex = NumberStyles.AllowHexSpecifier;
            if (!ushort.TryParse(text.Substring(at - 3, 4), hex, CultureInfo.InvariantCulture, out ushort code)) throw Malformed();
            return (char)code;
        }

        private object Number()
        {
            int begin = at;
            while (at < text.Length && "+-.eE0123456789".IndexOf(text[at]) >= 0) at++;
            string word = text.Substring(begin, at - begin);
            if (!Numbers.IsMatch(word)) throw Malformed();
            CultureInfo culture = CultureInfo.InvariantCulture;
            if (long.TryParse(word, NumberStyles.AllowLeadingSign, culture, out long integer)) return integer;
            if (ulong.TryParse(word, NumberStyles.None, culture, out ulong large)) return large;
            if (double.TryParse(word, NumberStyles.Float, culture, out double real)) return real;
            throw Malformed();
        }

        private bool Took(string word)
        {
            if (string.CompareOrdinal(text, at, word, 0, word.Length) != 0) return false;
            at += word.Length;
            return true;
        }

        private void Expect(char one)
        {
            if (Peek() != one) throw Malformed();
            at++;
        }

        private char Peek() => at < text.Length ? text[at] : throw Malformed();

        private void Skip()
        {
            while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
        }

        private FormatException Malformed() => new FormatException("something else was expected at character " + at);
    }
}
