using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>The fields of a map that a stranger sent, read one by one; an error names the field and what was expected.</summary>
    internal sealed class Fields
    {
        private const int MostParameters = 128;
        private readonly Map map;
        private readonly string path;

        public Fields(object value, string path)
        {
            this.path = path;
            map = value as Map ?? throw new BadEnvelopeException(path + " must be a map");
        }

        /// <summary>Return whether a field is there, and not null.</summary>
        public bool Has(string key) => Find(key, out object value) && value != null;

        public string String(string key, string otherwise = null)
        {
            if (!Find(key, out object value)) return otherwise ?? throw Missing(key);
            return value as string ?? throw Wrong(key, "a string");
        }

        /// <summary>Return an integer of at least <paramref name="least"/>.</summary>
        public long Count(string key, long? otherwise = null, long least = 0)
        {
            if (!Find(key, out object value)) return otherwise ?? throw Missing(key);
            if (value is long number && number >= least) return number;
            throw Wrong(key, "an integer from " + least + " to 2**63 - 1");
        }

        public bool Flag(string key, bool otherwise)
        {
            if (!Find(key, out object value)) return otherwise;
            return value is bool flag ? flag : throw Wrong(key, "a boolean");
        }

        /// <summary>Return the entries of an array; null where there is none.</summary>
        public List<object> List(string key)
        {
            if (!Has(key)) return null;
            Find(key, out object value);
            return value as List<object> ?? throw Wrong(key, "an array");
        }

        /// <summary>Return whatever a field holds; null where it is not there.</summary>
        public object Any(string key)
        {
            Find(key, out object value);
            return value;
        }

        /// <summary>Return the fields of a map below; null where there is none.</summary>
        public Fields Below(string key) => Has(key) ? new Fields(Any(key), At(key)) : null;

        /// <summary>Return the fields of each map of an array.</summary>
        public List<Fields> Each(string key) =>
            (List(key) ?? new List<object>()).Select((value, place) => new Fields(value, At(key) + "[" + place + "]")).ToList();

        /// <summary>Return the parameters that are no fields; each must be a boolean, a number or a string.</summary>
        public Parameters Scalars(Func<string, bool> isField)
        {
            if (map.Count > MostParameters) throw new BadEnvelopeException(path + ": more than " + MostParameters + " parameters");
            var found = new Parameters();
            foreach (var entry in map)
            {
                if (isField(entry.Key)) continue;
                if (!IsScalar(entry.Value)) throw Wrong(entry.Key, "a boolean, a number or a string");
                found.Add(entry.Key, entry.Value);
            }
            return found;
        }

        private static bool IsScalar(object value) =>
            value is bool || value is long || value is ulong || value is double || value is string;

        private bool Find(string key, out object value)
        {
            foreach (var entry in map)
            {
                if (entry.Key != key) continue;
                value = entry.Value;
                return true;
            }
            value = null;
            return false;
        }

        private string At(string key) => path + ": " + Text.Shown(key);

        private BadEnvelopeException Missing(string key) => new BadEnvelopeException(At(key) + " is missing");

        private BadEnvelopeException Wrong(string key, string expected) =>
            new BadEnvelopeException(At(key) + " must be " + expected);
    }
}
