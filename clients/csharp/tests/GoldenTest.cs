using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Security.Cryptography;
using Mqinfer;

/// <summary>The golden and the broken messages of the repository: tests/golden/README.md says what is in them.</summary>
internal sealed class GoldenTest
{
    private readonly string folder;
    private int failures;

    private GoldenTest(string folder) => this.folder = folder;

    public static int Run(string folder)
    {
        var test = new GoldenTest(folder);
        var entries = test.Entries("golden.json").Where(each => Text(each, "content_type") == Envelope.ContentType).ToList();
        var broken = test.Entries("broken.json").ToList();
        entries.ForEach(test.CheckGolden);
        broken.ForEach(test.CheckBroken);
        Console.WriteLine(entries.Count + " golden messages, " + broken.Count + " broken ones");
        return test.failures;
    }

    private IEnumerable<Map> Entries(string file) =>
        ((List<object>)Json.Parse(File.ReadAllText(Path.Combine(folder, file)))).Cast<Map>();

    private void Check(bool holds, string what)
    {
        if (holds) return;
        failures++;
        Console.Error.WriteLine("wrong: " + what);
    }

    private void Compare(object found, object expected, string what) =>
        Check(Same(found, expected), what + ": " + Shown(found) + ", expected " + Shown(expected));

    private void CheckGolden(Map entry)
    {
        string file = Text(entry, "file");
        byte[] bytes = File.ReadAllBytes(Path.Combine(folder, file));
        var payload = new ArraySegment<byte>(bytes);
        Compare(Envelope.Checksum(payload), Text(entry, "xxh3"), file + ": checksum");
        if (Text(entry, "kind") == "request")
        {
            Request request = Envelope.DecodeRequest(payload);
            Compare(Neutral.Of(request), Any(entry, "fields"), file + ": fields");
            Check(Envelope.EncodeRequest(request).SequenceEqual(bytes), file + ": written again");
            CheckTensors(file, entry, request.Inputs);
        }
        else
        {
            Reply reply = Envelope.DecodeReply(payload);
            Compare(Neutral.Of(reply), Any(entry, "fields"), file + ": fields");
            Check(Envelope.EncodeReply(reply).SequenceEqual(bytes), file + ": written again");
            CheckTensors(file, entry, reply.Outputs);
        }
    }

    private void CheckTensors(string file, Map entry, IReadOnlyList<Tensor> tensors)
    {
        var described = ((List<object>)Any(entry, "tensors")).Cast<Map>().ToList();
        Compare(tensors.Count, described.Count, file + ": number of tensors");
        for (int place = 0; place < tensors.Count; place++) CheckTensor(file + " " + tensors[place].Name, described[place], tensors[place]);
    }

    private void CheckTensor(string what, Map expected, Tensor tensor)
    {
        foreach (var each in Neutral.Of(tensor)) Compare(each.Value, Any(expected, each.Key), what + ": " + each.Key);
        if (tensor.Encoding == "jpeg" || tensor.Encoding == "png")
        {
            tensor.CheckPicture();
            return;
        }
        Tensor array = tensor.Decode();
        List<object> values = Neutral.Values(array);
        if (Any(expected, "values") is List<object> all) Compare(values, all, what + ": values");
        else if (Any(expected, "run_lengths") is List<object> runs) Compare(RunLengths(values), runs, what + ": run lengths");
        else
        {
            var first = (List<object>)Any(expected, "first");
            Compare(values.Take(first.Count).ToList(), first, what + ": first values");
            Compare(Neutral.Hex(SHA256.Create().ComputeHash(array.Bytes.ToArray())), Text(expected, "sha256"), what + ": SHA-256");
        }
        CheckEncodedAgain(what, tensor, array);
    }

    /// <summary>To the same bytes for raw; a compressor's differ, and have to hold the same.</summary>
    private void CheckEncodedAgain(string what, Tensor tensor, Tensor array)
    {
        var parameters = new Parameters();
        foreach (var each in tensor.Parameters.Where(each => each.Key != "raw_size")) parameters.Add(each.Key, each.Value);
        Tensor again = array.With("raw", array.Bytes, parameters).Encode(tensor.Encoding);
        Compare(Neutral.Of(again), Neutral.Of(tensor), what + ": encoded again");
        Check(again.Decode().Bytes.SequenceEqual(array.Bytes), what + ": bytes when encoded again");
        if (tensor.Encoding == "raw") Check(Neutral.Rebuilt(array).Bytes.SequenceEqual(array.Bytes), what + ": made from its elements");
    }

    private void CheckBroken(Map entry)
    {
        string found = CodeOf(Broken(entry), Text(entry, "kind"));
        Compare(found, Text(entry, "code"), Text(entry, "name"));
    }

    private static string CodeOf(byte[] bytes, string kind)
    {
        try
        {
            var payload = new ArraySegment<byte>(bytes);
            foreach (Tensor tensor in kind == "request" ? Envelope.DecodeRequest(payload).Inputs : Envelope.DecodeReply(payload).Outputs)
            {
                if (tensor.Encoding == "jpeg" || tensor.Encoding == "png") tensor.CheckPicture();
                else tensor.Decode();
            }
            return "ok";
        }
        catch (MqinferException error)
        {
            return error.Code;
        }
    }

    private byte[] Broken(Map entry)
    {
        if (Any(entry, "payload") is string payload) return Convert.FromBase64String(payload);
        byte[] bytes = File.ReadAllBytes(Path.Combine(folder, Text(entry, "base")));
        foreach (List<object> edit in (List<object>)Any(entry, "edits"))
        {
            string hex = (string)edit[1];
            for (int place = 0; 2 * place < hex.Length; place++)
                bytes[(long)edit[0] + place] = Convert.ToByte(hex.Substring(2 * place, 2), 16);
        }
        Array.Resize(ref bytes, (int)(long)Any(entry, "length"));
        return bytes;
    }

    private static List<object> RunLengths(List<object> values)
    {
        var found = new List<object>();
        foreach (object value in values)
        {
            var last = found.LastOrDefault() as List<object>;
            if (last == null || !Same(last[0], value)) found.Add(new List<object> { value, 1L });
            else last[1] = (long)last[1] + 1;
        }
        return found;
    }

    private static object Any(Map map, string key) => map.Find(each => each.Key == key).Value;

    private static string Text(Map map, string key) => (string)Any(map, key);

    /// <summary>Return whether two values of JSON are equal; the order of an object's keys does not count.</summary>
    private static bool Same(object one, object other)
    {
        if (one is Map map && other is Map expected)
            return map.Count == expected.Count && map.All(each => Same(each.Value, Any(expected, each.Key)));
        if (one is List<object> list && other is List<object> wanted)
            return list.Count == wanted.Count && list.Zip(wanted, Same).All(each => each);
        if (IsNumber(one) && IsNumber(other))
            return Convert.ToDouble(one, CultureInfo.InvariantCulture) == Convert.ToDouble(other, CultureInfo.InvariantCulture);
        return Equals(one, other);
    }

    private static bool IsNumber(object value) => value is int || value is long || value is ulong || value is double;

    private static string Shown(object value)
    {
        if (value is Map map) return "{" + string.Join(", ", map.Select(each => each.Key + ": " + Shown(each.Value))) + "}";
        if (value is List<object> list) return "[" + string.Join(", ", list.Select(Shown)) + "]";
        return Convert.ToString(value, CultureInfo.InvariantCulture);
    }
}
