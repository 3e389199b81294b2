// The first program: 16 numbers to small_16, and its 16.
using System;
using System.Linq;
using Mqinfer;

internal static class Infer
{
    private static void Main(string[] arguments)
    {
        using (Client client = Client.Connect(arguments.Length > 0 ? arguments[0] : "mqtt://127.0.0.1:1883"))
        {
            Result result = client.Infer("small_16", Tensor.Of("input", Enumerable.Repeat(1f, 16).ToArray(), 1, 16));
            Console.WriteLine(string.Join(" ", result["output"].ToArray<float>()) + " " + result.Worker);
        }
    }
}
