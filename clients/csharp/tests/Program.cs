using System;
using System.Linq;
using Mqinfer;

/// <summary>What tests/clients/test_csharp_client.py runs: <c>golden FOLDER</c>, <c>checksums LENGTH …</c>.</summary>
internal static class Program
{
    private static int Main(string[] arguments)
    {
        switch (arguments.Length > 0 ? arguments[0] : "")
        {
            case "golden": return GoldenTest.Run(arguments[1]);
            case "checksums": return Checksums(arguments.Skip(1).Select(int.Parse).ToArray());
            default: return 2;
        }
    }

    private static int Checksums(int[] lengths)
    {
        const int before = 3;
        foreach (int length in lengths)
        {
            byte[] bytes = Enumerable.Range(-before, before + length + 1).Select(place => (byte)(place * 131)).ToArray();
            Console.WriteLine(Envelope.Checksum(new ArraySegment<byte>(bytes, before, length)));
        }
        return 0;
    }
}
