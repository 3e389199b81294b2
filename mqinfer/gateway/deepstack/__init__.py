"""DeepStack's and CodeProject.AI's calls for detection, which Frigate, Blue Iris, Agent DVR and Viseron make.

https://docs.deepstack.cc/object-detection, https://codeproject.github.io/codeproject.ai/api/api_reference.html
"""
